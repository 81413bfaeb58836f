/*
 * data.h - datasets and iterators as userdata: core.data.*.
 *
 * Elements are flat lists of tensors here; lua/tidemill/data.lua keeps their structure.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_DATA_H
#define TM_LUA_DATA_H

#include "data/dataset.h"
#include "lua/state.h"

#define TM_LUA_DATASET_MT "tm.core.Dataset"

tm_dataset *tm_lua_check_dataset(lua_State *L, int i);
/* Push a closed box; the caller fills *box. */
tm_dataset **tm_lua_new_dataset(lua_State *L);

void tm_lua_open_data(lua_State *L, int core);
/* core.data.csv, text_line, idx (data_files.c) */
void tm_lua_open_data_files(lua_State *L, int data);

#endif
