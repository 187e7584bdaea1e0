"""The programs on the roof: command line, bench, chaos, simulation. Nothing below imports them."""
