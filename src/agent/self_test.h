// The smoke test of a sandbox, run inside one in place of the agent.
#ifndef AGENT_SELF_TEST_H
#define AGENT_SELF_TEST_H

#include <stdbool.h>

// Tries what the walls must prevent and looks at what they must look like from inside.  Writes one line a failed wall to
// descriptor 2, "self-test: ...".  True when all stand.
bool self_test(void);

#endif
