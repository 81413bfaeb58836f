#include "graph/op.h"

const tm_op_group tm_ops_encode = {NULL, 0};
