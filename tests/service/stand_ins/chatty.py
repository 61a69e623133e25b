"""Writes more to standard error than its log may hold, by the descriptor alone, and lives on."""

import os
import threading

os.write(2, b"one of many lines\n" * 1000)
threading.Event().wait()
