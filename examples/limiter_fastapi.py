"""A FastAPI dependency: a route holds a slot for its request, or answers 503 after two seconds.

BRIMFUL_REDIS_URL=redis://… uvicorn --app-dir examples limiter_fastapi:app --workers 4

All workers, on all machines, share the limits.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from brimful_worker.limiter import Lease, Limiter, SlotTimeout, Window

WINDOWS = [Window(10, seconds=1), Window(300, seconds=60)]
limiter = Limiter(os.environ["BRIMFUL_REDIS_URL"], "fastapi", slots=4, windows=WINDOWS, timeout_s=2)


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with contextlib.aclosing(limiter):
        yield


async def slot() -> AsyncIterator[Lease]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            lease = await stack.enter_async_context(limiter)
        except SlotTimeout as error:
            raise HTTPException(503, str(error), headers={"Retry-After": "2"}) from None
        yield lease


app = FastAPI(lifespan=lifespan)


@app.get("/report")
async def report(lease: Annotated[Lease, Depends(slot)]) -> dict[str, float]:
    return {"waited_s": lease.waited_s}  # here is the request to the service that is limited
