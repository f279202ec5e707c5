"""The suite `mini`: nine small generated tasks that mirror the Visual Decathlon, and the source
task made of their like.
"""
