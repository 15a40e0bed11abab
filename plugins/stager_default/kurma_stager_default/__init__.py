"""Kurma's default stager: Python inside, one supervisor per pod."""
