"""What every layer may use: device, environment card, atomic files, console."""
