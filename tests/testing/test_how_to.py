"""The how-to page shows a whole test module: it passes as it stands there."""

import re

import pytest

from tests.support.program import ROOT

pytest_plugins = ["pytester"]

PAGE = ROOT / "docs" / "how-to" / "testing.md"


def test_the_test_module_of_the_how_to_passes(pytester: pytest.Pytester) -> None:
    shop, conftest, tests = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[:3]
    pytester.makepyfile(shop=shop, test_shop=tests)
    pytester.makeconftest(conftest)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-p", "no:valkey", "-W", "error")
    result.assert_outcomes(passed=tests.count("def test_"))
