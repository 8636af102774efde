"""Charts for the report and the fleet's pages, drawn by Python as SVG."""
