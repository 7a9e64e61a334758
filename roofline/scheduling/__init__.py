"""Requests, paged blocks and the policies of continuous batching: pure state machines, no clock."""

from roofline.scheduling.batch import Chunk, ScheduledBatch, Scheduler
from roofline.scheduling.blocks import DEFAULT_BLOCK_SIZE, BlockPool, CountingPool, Pool
from roofline.scheduling.content import Content, Segments, TokenContent
from roofline.scheduling.radix import RadixPool
from roofline.scheduling.request import Request, Status
from roofline.scheduling.runs import RunPool
from roofline.scheduling.sglang import SglangConfig, SglangScheduler
from roofline.scheduling.static import StaticScheduler
from roofline.scheduling.vllm import VllmScheduler
from roofline.scheduling.vllm_config import VllmConfig

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "BlockPool",
    "Chunk",
    "Content",
    "CountingPool",
    "Pool",
    "RadixPool",
    "Request",
    "RunPool",
    "ScheduledBatch",
    "Scheduler",
    "Segments",
    "SglangConfig",
    "SglangScheduler",
    "StaticScheduler",
    "Status",
    "TokenContent",
    "VllmConfig",
    "VllmScheduler",
]
