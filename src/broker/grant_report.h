// What is left of a grant when it ends: its trace for the engine, its line in the log, and what the advisor finds in it.
#ifndef BROKER_GRANT_REPORT_H
#define BROKER_GRANT_REPORT_H

#include "broker/grant.h"

// Logs and counts; appends struct grant_trace_head, its rows, and the findings that the caller may see, to *trace, which may be
// NULL.
void grant_report(const struct grant *g, struct buf *trace);

#endif
