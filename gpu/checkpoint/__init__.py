"""What a model's folder holds, and how its weights come to the device: read, packed, listed."""
