"""What Python runs first of all. Under libfaketime 0.9.10 the call that time.sleep makes fails: wait in another way."""

import select
import time
from typing import SupportsIndex


def sleep(seconds: float | SupportsIndex, /) -> None:
    select.select([], [], [], float(seconds))


time.sleep = sleep
