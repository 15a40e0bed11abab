"""The stager's other programs, by which Kurma asks for something in a running pod."""
