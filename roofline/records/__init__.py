"""What was observed or predicted, as rows: measurements, requests, the environment they came from, and their files."""

from roofline.records.environment import Environment, capture_environment
from roofline.records.files import JsonlWriter, read_csv, read_jsonl, write_csv
from roofline.records.measurement import Measurement
from roofline.records.requests import RequestRecord

__all__ = ["Environment", "JsonlWriter", "Measurement", "RequestRecord", "capture_environment", "read_csv", "read_jsonl", "write_csv"]
