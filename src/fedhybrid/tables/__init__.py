"""From one file per site and a formula to each site's rows: what has to be agreed across sites is agreed, and nothing else leaves them."""
