"""Whether a model and torch are as they were."""

import torch


def snapshot(model):
    """Everything of a model and of torch that a fit could change."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "attention": (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
        "cudnn": (cuda.cudnn_sdp_enabled(), cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "identity": [id(value) for value in (*model.parameters(), *model.buffers())],
        "values": {name: value.detach().clone() for name, value in model.state_dict().items()},
        "storage": {name: value.data_ptr() for name, value in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "flags": {name: (value.requires_grad, value.is_leaf) for name, value in model.named_parameters()},
        "gradients": {name: value.grad for name, value in model.named_parameters()},
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "names": [name for name, _ in model.named_modules()],
        "random": torch.get_rng_state(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad": torch.is_grad_enabled(),
    }


def assert_same(before, after):
    for key in before:
        if key == "values":
            assert all(torch.equal(value, after[key][name]) for name, value in before[key].items())
        elif key == "random":
            assert torch.equal(before[key], after[key])
        elif key == "gradients":
            assert all(value is after[key][name] for name, value in before[key].items())
        else:
            assert before[key] == after[key], key
