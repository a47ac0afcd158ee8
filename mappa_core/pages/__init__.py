"""HTML pages that need nothing else: one template base, and curves as inline SVG."""
