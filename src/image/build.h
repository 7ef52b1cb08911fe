// sandbox-image build: the parent half (see builder.h for the confined one).
#ifndef IMAGE_BUILD_H
#define IMAGE_BUILD_H

#include "base/err.h"
#include "image/options.h"

// Builds and publishes a template and prints the result.  0, or a negative errno with a sentence; nothing is left then.
int build_template(const struct options *options, struct err *err);

#endif
