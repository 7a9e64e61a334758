"""Theory against the machine: predictions stated first, then measurements, then verdicts and the health of the device."""
