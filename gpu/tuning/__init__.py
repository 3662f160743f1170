"""What is fastest on a device, measured once and remembered."""
