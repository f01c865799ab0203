"""What every room may use: device, environment card, atomic files, console."""
