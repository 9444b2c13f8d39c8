"""The strictest settings that the library must work under. x64 stays off: the library scopes it itself."""

import os
from pathlib import Path

# As in the Makefile, for whoever runs pytest by hand; jax reads them when it is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("fedhybrid", deadline=None, derandomize=True, max_examples=20, database=None)
hypothesis.settings.load_profile("fedhybrid")

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: COMPILED.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
)


MAPS = Path("/proc/self/maps")
MOST_MAPS = 20_000  # of the 65 530 that Linux grants a process by default, and about two gigabytes; one test needs a few thousand
LOOK_AFTER = 50  # compiled programs, of some thirty maps each: a look takes milliseconds


@pytest.fixture(autouse=True)
def _few_programs_at_a_time():
    """Thousands of compiled programs use up the memory maps that Linux grants a process, and jaxlib then crashes.

    What is dropped has to be compiled or loaded again, so nothing is before it must be.
    """
    yield
    if len(COMPILED) > LOOK_AFTER:
        COMPILED.clear()
        if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
            jax.clear_caches()
