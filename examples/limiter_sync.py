"""Threads within limits that they share with every other process.

BRIMFUL_REDIS_URL=redis://… API_URL=https://… python examples/limiter_sync.py
"""

import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import redis

from brimful_worker.limiter import SyncLimiter

client = redis.Redis.from_url(os.environ["BRIMFUL_REDIS_URL"])  # its settings are used; it may as well be a URL
limiter = SyncLimiter(client, "threads", slots=3, starts=100, window_s=60)


def fetch(number: int) -> str:
    url = f"{os.environ['API_URL']}?number={number}"
    with limiter.slot(timeout_s=60), urllib.request.urlopen(url, timeout=30) as answer:
        return f"{number}: {answer.status}"


if __name__ == "__main__":
    with ThreadPoolExecutor(8) as threads:
        for line in threads.map(fetch, range(8)):
            print(line)
    limiter.close()
    client.close()
