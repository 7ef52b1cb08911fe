// What of libsandbox++ is not in its header.
#include <libsandbox.hpp>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *sandbox::version() noexcept
{
    return TEXT(SANDBOX_VERSION_MAJOR) "." TEXT(SANDBOX_VERSION_MINOR) "." TEXT(SANDBOX_VERSION_PATCH);
}
