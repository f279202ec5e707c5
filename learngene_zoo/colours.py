"""The colours of all HTML pages, for light and dark schemes, as CSS variables."""

PAGE_COLOURS = """\
:root { --ink: #1a1b1e; --quiet: #5d6168; --paper: #fdfdfc; --panel: #f4f4f1; --line: #d9d9d4; \
--accent: #0072b2;
  --series-0: #0072b2; --series-1: #d55e00; --series-2: #009e73; --series-3: #cc79a7; \
--series-4: #e69f00; --series-5: #56b4e9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e3; --quiet: #a0a4ab; --paper: #17181b; --panel: #212327; --line: #3a3d43; \
--accent: #62b5e5;
    --series-0: #4aa3df; --series-1: #f0803c; --series-2: #2fc79b; --series-3: #e29cc4; \
--series-4: #f2b430; --series-5: #9ad4f5; }
}
"""
