"""What turns GPU time into energy and carbon: stated by people, with the source of each figure."""

from django.db import models


class GridInput(models.Model):
    """Carbon intensity and facility overhead of one region of the fleet."""

    region = models.CharField(max_length=64, unique=True)
    g_co2e_per_kwh = models.FloatField()
    pue = models.FloatField()
    source = models.CharField(max_length=300)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(g_co2e_per_kwh__gte=0) & models.Q(g_co2e_per_kwh__lte=2000),
                name="grid_intensity_sane",
            ),
            models.CheckConstraint(
                condition=models.Q(pue__gte=1) & models.Q(pue__lte=3), name="grid_pue_sane"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.region} {self.g_co2e_per_kwh} g/kWh"


class PowerInput(models.Model):
    """Power of one GPU of a kind of hardware, as pools name it."""

    hardware = models.CharField(max_length=64, unique=True)
    power_w = models.FloatField()
    source = models.CharField(max_length=300)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(power_w__gt=0) & models.Q(power_w__lte=5000),
                name="power_sane",
            )
        ]

    def __str__(self) -> str:
        return f"{self.hardware} {self.power_w} W"
