"""What the device really does: timed cases on CPU and CUDA, one record per case.

METHOD goes into every record; it changes whenever the way of timing changes, and records of different methods are not compared.
"""

METHOD = "microbench 3"
