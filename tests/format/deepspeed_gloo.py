"""Gloo of PyTorch 1 as far as DeepSpeed wants it: it knows no bfloat16, and lacks two functions. Import it first."""
import torch


class Done:
    def wait(self):
        return True

    def is_completed(self):
        return True


def finished(async_op):
    return Done() if async_op else None


plain = {name: getattr(torch.distributed, name) for name in ("broadcast", "all_gather", "all_reduce")}


def bits(tensor):
    return tensor.view(torch.float16) if tensor.dtype == torch.bfloat16 else tensor


def broadcast(tensor, src, group=None, async_op=False):
    plain["broadcast"](bits(tensor.data), src, group=group)
    return finished(async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    plain["all_gather"]([bits(t) for t in tensor_list], bits(tensor), group=group)
    return finished(async_op)


def all_reduce(tensor, op=torch.distributed.ReduceOp.SUM, group=None, async_op=False):
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    plain["all_reduce"](wide, op=op, group=group)
    if wide is not tensor:
        tensor.copy_(wide)
    return finished(async_op)


def all_gather_into(output_tensor, input_tensor, group=None, async_op=False):
    parts = [torch.empty_like(input_tensor) for _ in range(torch.distributed.get_world_size(group))]
    all_gather(parts, input_tensor, group=group)
    output_tensor.view(-1).copy_(torch.cat([p.view(-1) for p in parts]))
    return finished(async_op)


def reduce_scatter(output, input, op=torch.distributed.ReduceOp.SUM, group=None, async_op=False):
    total = input.clone()
    all_reduce(total, op=op, group=group)
    output.view(-1).copy_(total.view(-1).chunk(torch.distributed.get_world_size(group))[torch.distributed.get_rank(group)])
    return finished(async_op)


# Gloo of PyTorch 1 knows no bfloat16, and lacks two of these.
if torch.__version__ < "2":
    torch.distributed.broadcast, torch.distributed.all_gather = broadcast, all_gather
    torch.distributed.all_reduce = all_reduce
    torch.distributed.all_gather_into_tensor = torch.distributed._all_gather_base = all_gather_into
    torch.distributed.reduce_scatter_tensor = torch.distributed._reduce_scatter_base = reduce_scatter
