// The jailer and the agents of tests/unit/engine_rig.h, played by one thread.
#ifndef TESTS_ENGINE_PLAY_H
#define TESTS_ENGINE_PLAY_H

// The thread; `rig` is a struct rig.  Ends when rig->stop is set or the engine has gone.
void *play_jailer(void *rig);

#endif
