"""The suite `mini`: nine small generated tasks that mirror the Visual Decathlon, and the source
tasks for pretraining on similar images.
"""
