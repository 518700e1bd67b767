import pytest

pytest.register_assert_rewrite("tests.methods.contract")  # a failed count shows both bills
