"""What the processes of a Ray of one's own inherit of the service's environment: users' code can read all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_NAMES = frozenset(
    {
        *("HOME", "HOSTNAME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "MALLOC_ARENA_MAX"),
        *("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        *("AWS_CA_BUNDLE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_REGION"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT"),
    }
)
_PREFIXES = (
    *("LC_", "XDG_", "PYTHON", "PIP_", "COVERAGE_"),
    *("CUDA_", "CUDNN_", "NCCL_", "NVIDIA_", "HIP_", "ROCR_", "GLOO_", "TORCH_", "PYTORCH_", "TRITON_", "UCX_"),
    *("GOMP_", "KMP_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_"),
)


def inherited(environment: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """The variables of a machine, of Python, of installing and of computing, and those called ``more``.

    A name tells nothing of what is in it (``DATABASE_URL`` holds a password), so that what is not known stays behind.
    """
    return {name: value for name, value in environment.items() if name in more or _is_common(name)}


def _is_common(name: str) -> bool:
    return name.upper() in _NAMES or name.startswith(_PREFIXES)
