"""Machine that evaluates: its device, its name (part of the identity of a timing), and whether it reaches the hub."""

import gc
import os
import sys
import urllib.request
from urllib.error import HTTPError

from training import hardware

HUB_SECONDS = 5.0


def use(name: str, threads: int) -> str:
    """Check the device, make it current, set the CPU threads (overrides OMP_NUM_THREADS), and return the device's name.
    ValueError for a device that this machine does not have."""
    os.environ.update(hardware.equal_bits(threads, os.environ) | {"OMP_NUM_THREADS": str(threads)})
    if "torch" in sys.modules:  # torch reads the variable only when it is imported
        sys.modules["torch"].set_num_threads(threads)
    if name != "cpu":
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = ["cuda", *(f"cuda:{number}" for number in range(count))] if count else []
        if name not in names:
            raise ValueError(f"--device {name}: choose one of {', '.join(['cpu', *names])}")
        torch.cuda.set_device(int(name.partition(":")[2] or 0))  # for Triton's kernels and CUDA graphs
    return name


def machine_name(device: str) -> str:
    """Return the name of the GPU ("NVIDIA H200"), or model and number of cores of the CPU."""
    if device != "cpu":
        import torch

        return torch.cuda.get_device_name(device)
    return f"{hardware.processor()}, {os.cpu_count()} cores"


def check_machine(wanted: str | None, device: str) -> str:
    """Return the machine's name. ValueError if the spec is a timing on another machine."""
    machine = machine_name(device)
    if machine != wanted:
        raise ValueError(f"the evaluation is a timing on {wanted}; this is {machine}: plan it for this machine")
    return machine


def reset_peak_memory(device: str) -> None:
    """Reset the peak memory that an earlier evaluation of the process reached."""
    if device != "cpu":
        import torch

        gc.collect()  # a compiled model refers to itself
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(device: str) -> float | None:
    """Return the peak of allocated memory; None on the CPU."""
    if device == "cpu":
        return None
    import torch

    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2)


def go_offline_if_unreachable() -> None:
    """Use only the local cache if the hub cannot be reached, so that libraries do not retry for a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return
    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=HUB_SECONDS).close()
    except HTTPError:
        pass  # it answers
    except OSError as error:
        print(f"the hub cannot be reached ({error}); only the local cache is used", file=sys.stderr)
        os.environ["HF_HUB_OFFLINE"] = "1"
        constants.HF_HUB_OFFLINE = True
