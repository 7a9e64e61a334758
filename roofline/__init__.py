"""What can this model do on this hardware, why, and is the machine delivering it?"""

__version__ = "0.1.0"
