#include "graph/op.h"

const tm_op_group tm_ops_sort = {NULL, 0};
