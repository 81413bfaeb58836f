---@meta tidemill.core
--- What the C module offers, for language servers; never loaded.

---@class tm.Tensor
---@field shape integer[]  -1: not known while tracing
---@field dtype string
---@field rank integer
---@field symbolic boolean  it belongs to an open trace
---@operator add(any): tm.Tensor
---@operator sub(any): tm.Tensor
---@operator mul(any): tm.Tensor
---@operator div(any): tm.Tensor
---@operator mod(any): tm.Tensor
---@operator pow(any): tm.Tensor
---@operator unm: tm.Tensor
local Tensor = {}

--- Elements.
---@return integer
function Tensor:size() end

--- The one element as a Lua value.
---@return number|boolean|string
function Tensor:item() end

---@return table
function Tensor:totable() end

--- One entry an axis: { from, to, step }, {} for all, a position; positions count from 1.
---@param ranges table
---@return tm.Tensor
function Tensor:slice(ranges) end

---@param axis integer
---@param first integer
---@param length integer
---@return tm.Tensor
function Tensor:narrow(axis, first, length) end

---@param axis integer
---@param position integer
---@return tm.Tensor
function Tensor:select(axis, position) end

---@class tm.core.Graph
---@class tm.core.Program
---@class tm.core.Trace
---@class tm.core.Tape
---@class tm.core.Dataset
---@class tm.core.Iterator

---@class tm.core
---@field version string
---@field ops table<string, function>      every op by its name, hidden ones too
---@field methods table<string, function>  methods of tensors
---@field hooks table<string, function>    Lua functions that C calls
---@field Tensor table  metatable of tensors
---@field Error table   metatable of error objects
---@field data table<string, function>
local core = {}

---@param value any
---@param dtype? string
---@return tm.Tensor
function core.tensor(value, dtype) end

--- Anything that stands for a tensor, as a tensor.
---@param x any
---@param dtype? string  of numbers and lists of them
---@return tm.Tensor
function core.as_value(x, dtype) end

---@return boolean
function core.is_tensor(x) end

--- A writer of TensorBoard's event files; lua/tidemill/summary.lua wraps it.
---@param directory string
---@param suffix string
---@param flush_ms number
function core.event_writer(directory, suffix, flush_ms) end

--- From now on the times of ops of traced functions are kept, `max` of them.
---@param max integer
function core.spans_begin(max) end

--- Those that were kept: name, from, to in seconds; how many more there were.
---@return { [1]: string, [2]: number, [3]: number }[]
---@return integer
function core.spans_take() end

--- Make or replace a file, packed as gzip does.
---@param path string
---@param text string
function core.write_gzip(path, text) end

--- Make a directory, and those above it.
---@param path string
function core.make_dir(path) end

--- The 8 bytes of a number, as protocol buffers have them.
---@param x number
---@return string
function core.double_bytes(x) end

--- Dtype and shape as a short text.
---@param x tm.Tensor
---@return string
function core.typekey(x) end

---@param name string
---@return { sig: string, help: string, usage: string, hidden: boolean, method: boolean }?
function core.op_info(name) end

--- A trace is open.
---@return boolean
function core.tracing() end

---@param name string
---@return tm.core.Trace
function core.trace_begin(name) end

---@param trace tm.core.Trace
---@param dtype string
---@param shape integer[]
---@return tm.Tensor
function core.trace_arg(trace, dtype, shape) end

--- Nodes of a trace so far.
---@param trace tm.core.Trace
---@return integer
function core.trace_size(trace) end

---@param trace tm.core.Trace
---@param outputs tm.Tensor[]
---@return tm.core.Graph
function core.trace_end(trace, outputs) end

---@param trace tm.core.Trace
---@param iterator any  or a dataset
---@return userdata
function core.trace_iterator(trace, iterator) end

--- Values of outside that the trace uses.
---@param trace tm.core.Trace
---@return any[]
function core.trace_captures(trace) end

---@param trace tm.core.Trace
function core.trace_abort(trace) end

--- How deep scopes (traces, tapes, eager ones) are, for unwind after an error.
---@return integer
function core.mark() end

---@param mark integer
function core.unwind(mark) end

--- Ops run at once inside a trace, until pop_eager.
function core.push_eager() end

function core.pop_eager() end

---@param graph tm.core.Graph
---@return tm.core.Graph
function core.graph_optimize(graph) end

---@param graph tm.core.Graph
---@return string
function core.graph_text(graph) end

--- Types of the outputs.
---@param graph tm.core.Graph
---@return table[]
function core.graph_types(graph) end

--- Types of the arguments.
---@param graph tm.core.Graph
---@return table[]
function core.graph_args(graph) end

--- Uids of the variables.
---@param graph tm.core.Graph
---@return any[]
function core.graph_variables(graph) end

---@param graph tm.core.Graph
---@return string
function core.graph_hash(graph) end

---@param graph tm.core.Graph
---@return string
function core.graph_pack(graph) end

---@param text string
---@param uids table<string, any>  by what graph_uid gives
---@return tm.core.Graph
function core.graph_unpack(text, uids) end

---@param uid any
---@return string
function core.graph_uid(uid) end

--- The ops of a graph again, eagerly or into the open trace; gradients go through.
---@param graph tm.core.Graph
---@param args tm.Tensor[]
---@return tm.Tensor[]
function core.graph_replay(graph, args) end

---@param graph tm.core.Graph
---@return tm.core.Program
function core.program(graph) end

---@param program tm.core.Program
---@param args tm.Tensor[]
---@return tm.Tensor ...
function core.run(program, args) end

---@param persistent boolean
---@return tm.core.Tape
function core.tape_begin(persistent) end

---@param tape tm.core.Tape
---@param t tm.Tensor
function core.tape_watch(tape, t) end

--- Record no more.
---@param tape tm.core.Tape
function core.tape_stop(tape) end

---@param tape tm.core.Tape
function core.tape_close(tape) end

---@param tape tm.core.Tape
---@param target tm.Tensor
---@param seed? tm.Tensor
---@param sources any[]
---@return (tm.Tensor|table|false)[]  { ids, rows } of a gradient by rows; false: unconnected
function core.tape_gradient(tape, target, seed, sources) end

---@param name string
---@param dtype string
---@param shape integer[]
---@param init table|tm.Tensor  { kind, a, b, seed }, or the value
---@return integer uid
---@return userdata handle
function core.variable(name, dtype, shape, init) end

return core
