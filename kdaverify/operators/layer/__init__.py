"""Whole layers, judged by invariance: no oracle of a layer, laws that it keeps."""
