#include "graph/op.h"

const tm_op_group tm_ops_lookup = {NULL, 0};
