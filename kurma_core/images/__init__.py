"""Images: fetched, verified, stored, rendered and garbage-collected by the image manager (``manager.py``)."""
