// Tests in C++: cases that throw when they fail, counted as TAP.  (cmocka leaves by longjmp, past destructors.)
#ifndef TESTS_SUPPORT_TAP_HPP
#define TESTS_SUPPORT_TAP_HPP

#include <cstdio>
#include <exception>
#include <libsandbox.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tap
{

struct Case {
    const char *name;
    void (*run)();
};

inline std::vector<Case> &cases()
{
    static std::vector<Case> all;
    return all;
}

struct Register {
    Register(const char *name, void (*run)())
    {
        cases().push_back({name, run});
    }
};

[[noreturn]] inline void fail(const char *file, int line, const std::string &what)
{
    throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <class A, class B> void equal(const A &got, const B &want, const char *text, const char *file, int line)
{
    if (got == want)
        return;
    std::ostringstream out;
    out << text << " is '" << got << "', not '" << want << "'";
    fail(file, line, out.str());
}

// The code of the SandboxError that `call` throws, which must have a sentence.
template <class F> int code_of(F call, const char *text, const char *file, int line)
{
    try {
        call();
    } catch (const sandbox::SandboxError &e) {
        if (e.what()[0] == '\0')
            fail(file, line, std::string(text) + " threw without a sentence");
        return e.code();
    }
    fail(file, line, std::string(text) + " did not throw");
}

inline int run_all()
{
    std::printf("1..%zu\n", cases().size());
    int failed = 0, number = 0;
    for (const Case &c : cases()) {
        std::string why;
        bool good = false;
        try {
            c.run();
            good = true;
        } catch (const std::exception &e) {
            why = e.what();
        }
        std::printf("%s %d - %s\n", good ? "ok" : "not ok", ++number, c.name);
        if (!good)
            std::printf("# %s\n", why.c_str());
        std::fflush(stdout);
        failed += !good;
    }
    return failed != 0;
}

}  // namespace tap

#define TEST(name)                                                                                                             \
    static void name();                                                                                                        \
    static const tap::Register register_##name(#name, name);                                                                   \
    static void name()
#define CHECK(condition) ((condition) ? (void)0 : tap::fail(__FILE__, __LINE__, #condition " is false"))
#define CHECK_EQ(got, want) tap::equal(got, want, #got, __FILE__, __LINE__)
#define CHECK_THROWS(call, code)                                                                                               \
    tap::equal(tap::code_of([&] { (void)(call); }, #call, __FILE__, __LINE__), static_cast<int>(code), "the code of " #call,   \
               __FILE__, __LINE__)

#endif
