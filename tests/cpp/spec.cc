// The examples of the interface's document, to the letter: this file must compile.
#include <libsandbox.hpp>
#include <type_traits>

using namespace sandbox;

// The signatures it lists.
static_assert(std::is_constructible<Spec, uint64_t, const std::string &>::value, "");
static_assert(std::is_same<decltype(&Spec::vcpus), Spec &(Spec::*)(uint32_t)>::value, "");
static_assert(std::is_same<decltype(&Spec::env), Spec &(Spec::*)(const std::string &, const std::string &)>::value, "");
static_assert(std::is_same<decltype(&Spec::pool_wait), Spec &(Spec::*)(uint32_t)>::value, "");
static_assert(std::is_same<decltype(&Sandbox::pause), void (Sandbox::*)()>::value, "");
static_assert(std::is_same<decltype(&Sandbox::resume), void (Sandbox::*)()>::value, "");
static_assert(std::is_same<decltype(&Sandbox::inspect), sandbox_status_t (Sandbox::*)() const>::value, "");
static_assert(std::is_same<decltype(std::declval<const Sandbox &>().id()), uint32_t>::value, "");
static_assert(std::is_same<decltype(&Engine::create), std::unique_ptr<Sandbox> (Engine::*)(const Spec &)>::value, "");
static_assert(std::is_default_constructible<Engine>::value, "");
static_assert(std::is_same<decltype(std::declval<const SandboxError &>().code()), sandbox_error_t>::value, "");

void the_example();
void the_example()
{
    sandbox::Engine engine;
    auto sb = engine.create(sandbox::Spec(512, "python-agent").vcpus(2).env("K", "V"));
    sb->pause();
}

void the_policies(sandbox::Engine &engine);
void the_policies(sandbox::Engine &engine)
{
    engine.create(sandbox::Spec(256, "debian").allow_egress("index.example.org").allow_egress("*.dist.example.org"));
    engine.create(sandbox::Spec(256, "debian").no_egress());
}

// Run against no engine: it must throw what the document says.
int main()
{
    try {
        sandbox::Engine engine("/nonexistent/engine.sock");
    } catch (const sandbox::SandboxError &e) {
        return e.code() == SANDBOX_ERR_DAEMON_UNREACHABLE && sandbox::version()[0] != '\0' ? 0 : 1;
    }
    return 1;
}
