"""From what a server, a log or a load test shows to ranked causes, each with what speaks for and against it."""
