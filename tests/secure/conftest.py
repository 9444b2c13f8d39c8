import pytest

pytest.importorskip("cryptography")
