"""Waits for servers under test."""
import time
import urllib.request


def wait_ready(at, hint=""):
    """Returns when the server at this address answers, and ends the program if it does not within a minute."""
    for _ in range(600):
        try:
            urllib.request.urlopen(at + "/health/ready", timeout=2)
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server at {at} is not ready{hint}")
