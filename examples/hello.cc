// Runs one command in a sandbox, in C++.
// Build: c++ -std=c++17 hello.cc $(pkg-config --cflags --libs libsandbox++) -o hello
#include <cstdlib>
#include <iostream>
#include <libsandbox.hpp>

int main()
{
    const char *socket = std::getenv("SANDBOX_SOCKET");
    try {
        sandbox::Engine engine(socket != nullptr ? socket : SANDBOX_DEFAULT_SOCKET);
        auto sb = engine.create(sandbox::Spec(512, "python-agent").vcpus(1).env("GREETING", "hello").pool_wait(500));
        const auto result = sb->exec("echo \"$GREETING from a sandbox\"");
        std::cout << result.out << "exit code " << result.exit_code << ", behind a " << sandbox_isolation_name(sb->isolation())
                  << " wall\n";
        return result.ok() ? 0 : 1;
    } catch (const sandbox::SandboxError &e) {
        std::cerr << e.what() << " (" << sandbox_error_string(e.code()) << ")\n";
        return 1;
    }
}
