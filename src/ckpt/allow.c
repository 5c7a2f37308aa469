/*
 * The list of names that pickles may use.
 *
 * Reading a pickle never calls anything, so this list is not what keeps the reader safe; it keeps
 * the user from taking a hostile file for a checkpoint, and the reader from taking a call that it
 * does not understand for data. Rows are tried in order; a row's module ends in ".*" to cover a
 * whole package, its name is "*" to cover all names of a module.
 *
 * Packages listed as RS_ALLOW_CALL at the end hold configuration, enums and small state objects
 * that training frameworks put into checkpoints beside the tensors; they are kept as records.
 */
#include "ckpt/allow.h"

#include <string.h>

typedef struct allow_row {
    const char *module;
    const char *name;
    rs_allow allow;
} allow_row;

static const allow_row rows[] = {
    /* Data of Python itself. */
    {"builtins", "set", RS_ALLOW_CALL},
    {"builtins", "frozenset", RS_ALLOW_CALL},
    {"builtins", "bytes", RS_ALLOW_CALL},
    {"builtins", "bytearray", RS_ALLOW_CALL},
    {"builtins", "complex", RS_ALLOW_CALL},
    {"builtins", "slice", RS_ALLOW_CALL},
    {"builtins", "range", RS_ALLOW_CALL},
    {"builtins", "dict", RS_ALLOW_VALUE},
    {"builtins", "list", RS_ALLOW_VALUE},
    {"builtins", "tuple", RS_ALLOW_VALUE},
    {"builtins", "int", RS_ALLOW_VALUE},
    {"builtins", "float", RS_ALLOW_VALUE},
    {"builtins", "str", RS_ALLOW_VALUE},
    {"builtins", "bool", RS_ALLOW_VALUE},
    {"builtins", "object", RS_ALLOW_VALUE},
    {"builtins", "NoneType", RS_ALLOW_VALUE},
    {"builtins", "getattr", RS_ALLOW_CALL}, /* only to name a member of an enum */
    {"builtins", "*", RS_ALLOW_NEVER},
    {"_codecs", "encode", RS_ALLOW_CALL},
    {"_codecs", "*", RS_ALLOW_NEVER},
    {"copyreg", "_reconstructor", RS_ALLOW_CALL},
    {"copyreg", "*", RS_ALLOW_NEVER},
    {"collections", "OrderedDict", RS_ALLOW_CALL},
    {"collections", "defaultdict", RS_ALLOW_CALL},
    {"collections", "Counter", RS_ALLOW_CALL},
    {"collections", "deque", RS_ALLOW_CALL},
    {"argparse", "Namespace", RS_ALLOW_CALL},
    {"types", "SimpleNamespace", RS_ALLOW_CALL},
    {"types", "*", RS_ALLOW_NEVER},
    {"datetime", "*", RS_ALLOW_CALL},
    {"uuid", "UUID", RS_ALLOW_CALL},
    {"uuid", "SafeUUID", RS_ALLOW_CALL},
    {"decimal", "Decimal", RS_ALLOW_CALL},
    {"fractions", "Fraction", RS_ALLOW_CALL},
    {"pathlib", "*", RS_ALLOW_CALL},
    {"pathlib._local", "*", RS_ALLOW_CALL},
    {"_io", "BytesIO", RS_ALLOW_CALL},
    {"io", "BytesIO", RS_ALLOW_CALL},

    /* Tensors. */
    {"torch", "Size", RS_ALLOW_CALL},
    {"torch", "device", RS_ALLOW_CALL},
    {"torch", "load", RS_ALLOW_NEVER},
    {"torch", "*", RS_ALLOW_VALUE}, /* dtypes and storage classes */
    {"torch.cuda", "*", RS_ALLOW_VALUE},
    {"torch.storage", "_load_from_bytes", RS_ALLOW_NEVER},
    {"torch.storage", "*", RS_ALLOW_VALUE},
    {"torch.serialization", "_get_layout", RS_ALLOW_CALL},
    {"torch.serialization", "*", RS_ALLOW_NEVER},
    {"torch._utils", "_rebuild_tensor", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_tensor_v2", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_tensor_v3", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_parameter", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_parameter_with_state", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_sparse_tensor", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_sparse_csr_tensor", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_qtensor", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_nested_tensor", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_wrapper_subclass", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", RS_ALLOW_CALL},
    {"torch._utils", "_rebuild_xla_tensor", RS_ALLOW_CALL},
    {"torch._utils", "*", RS_ALLOW_NEVER},
    {"torch._tensor", "_rebuild_from_type_v2", RS_ALLOW_CALL},
    {"torch._tensor", "_rebuild_from_type", RS_ALLOW_CALL},
    {"torch.tensor", "_rebuild_from_type", RS_ALLOW_CALL},
    {"torch._tensor", "*", RS_ALLOW_VALUE},
    {"torch.nn.parameter", "Parameter", RS_ALLOW_CALL},
    {"torch.nn.parameter", "Buffer", RS_ALLOW_CALL},
    {"torch.distributed.checkpoint.metadata", "*", RS_ALLOW_CALL},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", RS_ALLOW_CALL},
    {"torch.distributed._shard.checkpoint.metadata", "*", RS_ALLOW_CALL},
    {"torch.distributed._shard.checkpoint.filesystem", "_StorageInfo", RS_ALLOW_CALL},
    {"torch.distributed._shard.sharded_tensor.metadata", "*", RS_ALLOW_CALL},
    {"torch.distributed._shard.metadata", "*", RS_ALLOW_CALL},
    {"torch.hub.*", "*", RS_ALLOW_NEVER},
    {"torch.jit.*", "*", RS_ALLOW_NEVER},
    {"torch.package.*", "*", RS_ALLOW_NEVER},
    {"torch.multiprocessing.*", "*", RS_ALLOW_NEVER},
    {"numpy.core.multiarray", "scalar", RS_ALLOW_CALL},
    {"numpy.core.multiarray", "_reconstruct", RS_ALLOW_CALL},
    {"numpy._core.multiarray", "scalar", RS_ALLOW_CALL},
    {"numpy._core.multiarray", "_reconstruct", RS_ALLOW_CALL},
    {"numpy.core.numeric", "_frombuffer", RS_ALLOW_CALL},
    {"numpy._core.numeric", "_frombuffer", RS_ALLOW_CALL},
    {"numpy", "dtype", RS_ALLOW_CALL},
    {"numpy", "ndarray", RS_ALLOW_VALUE},
    {"numpy.dtypes", "*", RS_ALLOW_CALL},

    /* Ways to run code, or to come by something that runs it. */
    {"os.*", "*", RS_ALLOW_NEVER},
    {"posix.*", "*", RS_ALLOW_NEVER},
    {"nt.*", "*", RS_ALLOW_NEVER},
    {"posixpath.*", "*", RS_ALLOW_NEVER},
    {"sys.*", "*", RS_ALLOW_NEVER},
    {"subprocess.*", "*", RS_ALLOW_NEVER},
    {"_posixsubprocess.*", "*", RS_ALLOW_NEVER},
    {"commands.*", "*", RS_ALLOW_NEVER},
    {"runpy.*", "*", RS_ALLOW_NEVER},
    {"importlib.*", "*", RS_ALLOW_NEVER},
    {"_frozen_importlib.*", "*", RS_ALLOW_NEVER},
    {"imp.*", "*", RS_ALLOW_NEVER},
    {"pkgutil.*", "*", RS_ALLOW_NEVER},
    {"pty.*", "*", RS_ALLOW_NEVER},
    {"shutil.*", "*", RS_ALLOW_NEVER},
    {"socket.*", "*", RS_ALLOW_NEVER},
    {"_socket.*", "*", RS_ALLOW_NEVER},
    {"ssl.*", "*", RS_ALLOW_NEVER},
    {"socketserver.*", "*", RS_ALLOW_NEVER},
    {"asyncio.*", "*", RS_ALLOW_NEVER},
    {"http.*", "*", RS_ALLOW_NEVER},
    {"urllib.*", "*", RS_ALLOW_NEVER},
    {"urllib2.*", "*", RS_ALLOW_NEVER},
    {"httplib.*", "*", RS_ALLOW_NEVER},
    {"requests.*", "*", RS_ALLOW_NEVER},
    {"ftplib.*", "*", RS_ALLOW_NEVER},
    {"smtplib.*", "*", RS_ALLOW_NEVER},
    {"webbrowser.*", "*", RS_ALLOW_NEVER},
    {"ctypes.*", "*", RS_ALLOW_NEVER},
    {"_ctypes.*", "*", RS_ALLOW_NEVER},
    {"cffi.*", "*", RS_ALLOW_NEVER},
    {"mmap.*", "*", RS_ALLOW_NEVER},
    {"pickle.*", "*", RS_ALLOW_NEVER},
    {"_pickle.*", "*", RS_ALLOW_NEVER},
    {"cPickle.*", "*", RS_ALLOW_NEVER},
    {"dill.*", "*", RS_ALLOW_NEVER},
    {"cloudpickle.*", "*", RS_ALLOW_NEVER},
    {"joblib.*", "*", RS_ALLOW_NEVER},
    {"marshal.*", "*", RS_ALLOW_NEVER},
    {"shelve.*", "*", RS_ALLOW_NEVER},
    {"code.*", "*", RS_ALLOW_NEVER},
    {"codeop.*", "*", RS_ALLOW_NEVER},
    {"operator.*", "*", RS_ALLOW_NEVER},
    {"_operator.*", "*", RS_ALLOW_NEVER},
    {"inspect.*", "*", RS_ALLOW_NEVER},
    {"ast.*", "*", RS_ALLOW_NEVER},
    {"dis.*", "*", RS_ALLOW_NEVER},
    {"gc.*", "*", RS_ALLOW_NEVER},
    {"bdb.*", "*", RS_ALLOW_NEVER},
    {"pdb.*", "*", RS_ALLOW_NEVER},
    {"pydoc.*", "*", RS_ALLOW_NEVER},
    {"doctest.*", "*", RS_ALLOW_NEVER},
    {"timeit.*", "*", RS_ALLOW_NEVER},
    {"trace.*", "*", RS_ALLOW_NEVER},
    {"profile.*", "*", RS_ALLOW_NEVER},
    {"cProfile.*", "*", RS_ALLOW_NEVER},
    {"threading.*", "*", RS_ALLOW_NEVER},
    {"_thread.*", "*", RS_ALLOW_NEVER},
    {"multiprocessing.*", "*", RS_ALLOW_NEVER},
    {"concurrent.*", "*", RS_ALLOW_NEVER},
    {"atexit.*", "*", RS_ALLOW_NEVER},
    {"site.*", "*", RS_ALLOW_NEVER},
    {"setuptools.*", "*", RS_ALLOW_NEVER},
    {"distutils.*", "*", RS_ALLOW_NEVER},
    {"pip.*", "*", RS_ALLOW_NEVER},
    {"venv.*", "*", RS_ALLOW_NEVER},
    {"ensurepip.*", "*", RS_ALLOW_NEVER},
    {"tempfile.*", "*", RS_ALLOW_NEVER},
    {"fileinput.*", "*", RS_ALLOW_NEVER},
    {"zipfile.*", "*", RS_ALLOW_NEVER},
    {"tarfile.*", "*", RS_ALLOW_NEVER},
    {"zipimport.*", "*", RS_ALLOW_NEVER},
    {"zipapp.*", "*", RS_ALLOW_NEVER},
    {"io.*", "*", RS_ALLOW_NEVER},
    {"_io.*", "*", RS_ALLOW_NEVER},
    {"sqlite3.*", "*", RS_ALLOW_NEVER},
    {"logging.config.*", "*", RS_ALLOW_NEVER},
    {"xmlrpc.*", "*", RS_ALLOW_NEVER},
    {"tkinter.*", "*", RS_ALLOW_NEVER},
    {"idlelib.*", "*", RS_ALLOW_NEVER},
    {"lib2to3.*", "*", RS_ALLOW_NEVER},
    {"numpy.testing.*", "*", RS_ALLOW_NEVER},
    {"numpy.f2py.*", "*", RS_ALLOW_NEVER},
    {"numpy.distutils.*", "*", RS_ALLOW_NEVER},

    /* Records of training frameworks. */
    {"deepspeed.*", "*", RS_ALLOW_CALL},
    {"megatron.*", "*", RS_ALLOW_CALL},
    {"transformer_engine.*", "*", RS_ALLOW_CALL},
    {"transformers.*", "*", RS_ALLOW_CALL},
    {"accelerate.*", "*", RS_ALLOW_CALL},
    {"omegaconf.*", "*", RS_ALLOW_CALL},
};

static bool module_fits(const char *pattern, const char *module)
{
    size_t length = strlen(pattern);
    if (length < 2 || strcmp(pattern + length - 2, ".*") != 0)
        return strcmp(pattern, module) == 0;
    length -= 2;
    return strncmp(module, pattern, length) == 0 && (module[length] == 0 || module[length] == '.');
}

rs_allow rs_allow_global(const rs_global *global)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool any = rows[i].name[0] == '*';
        if (!module_fits(rows[i].module, global->module) ||
            !(any || strcmp(rows[i].name, global->name) == 0))
            continue;
        /* A dotted name is a class inside a class, or reaches through a module's own imports. */
        if (any && rows[i].allow != RS_ALLOW_NEVER && strchr(global->name, '.') != NULL)
            return RS_ALLOW_UNKNOWN;
        return rows[i].allow;
    }
    return RS_ALLOW_UNKNOWN;
}
