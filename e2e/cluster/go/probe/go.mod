module cadre.local/cluster/probe

go 1.25.0
