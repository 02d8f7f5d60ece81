//! A date and time of day as templates print them: `strftime` without a locale.

/// A local date and time, handed in by the caller: this crate has no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DateTime {
    /// Year, 0 to 9999.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 59.
    pub second: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Days before each month of a year that is no leap year.
const DAYS_BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

impl DateTime {
    /// The UTC date and time of a Unix timestamp in seconds.
    pub fn from_unix_seconds(seconds: u64) -> DateTime {
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        // Years begin in March, eras are 400 years: the leap day ends the year.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = (month_from_march + 2) % 12 + 1;
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        DateTime {
            year: u16::try_from(year).unwrap_or(9999),
            month: month as u8,
            day: (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u8,
            hour: (rest / 3600) as u8,
            minute: (rest / 60 % 60) as u8,
            second: (rest % 60) as u8,
        }
    }

    /// Formats like C's `strftime` in the C locale, without time zone names. A directive that is
    /// not known is copied.
    pub fn strftime(&self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() + 16);
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('-') => match chars.next() {
                    Some(directive) => self.unpadded(directive, &mut out),
                    None => out.push_str("%-"),
                },
                Some(directive) => self.directive(directive, &mut out),
                None => out.push('%'),
            }
        }
        out
    }

    fn unpadded(&self, directive: char, out: &mut String) {
        let mut padded = String::new();
        self.directive(directive, &mut padded);
        let digits = padded.trim_start_matches(['0', ' ']);
        out.push_str(if digits.is_empty() { "0" } else { digits });
    }

    fn directive(&self, directive: char, out: &mut String) {
        let month = MONTHS.get(usize::from(self.month).wrapping_sub(1)).copied().unwrap_or("?");
        let day = DAYS.get(self.weekday()).copied().unwrap_or("?");
        let hour12 = (self.hour + 11) % 12 + 1;
        let half = if self.hour < 12 { "AM" } else { "PM" };
        let text = match directive {
            'Y' => format!("{:04}", self.year),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'B' => month.to_owned(),
            'b' | 'h' => month.chars().take(3).collect(),
            'A' => day.to_owned(),
            'a' => day.chars().take(3).collect(),
            'w' => self.weekday().to_string(),
            'u' => ((self.weekday() + 6) % 7 + 1).to_string(),
            'j' => format!("{:03}", self.day_of_year()),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour12:02}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'f' => "000000".to_owned(),
            'p' => half.to_owned(),
            'F' => self.strftime("%Y-%m-%d"),
            'D' | 'x' => self.strftime("%m/%d/%y"),
            'T' | 'X' => self.strftime("%H:%M:%S"),
            'R' => self.strftime("%H:%M"),
            'c' => self.strftime("%a %b %e %H:%M:%S %Y"),
            // A naive time has no zone.
            'Z' | 'z' => String::new(),
            '%' => "%".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            other => format!("%{other}"),
        };
        out.push_str(&text);
    }

    fn is_leap_year(&self) -> bool {
        self.year.is_multiple_of(4)
            && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400))
    }

    /// Day of the year, from 1.
    fn day_of_year(&self) -> u32 {
        let before = DAYS_BEFORE.get(usize::from(self.month).wrapping_sub(1)).copied();
        let leap = u32::from(self.is_leap_year() && self.month > 2);
        before.unwrap_or(0) + leap + u32::from(self.day)
    }

    /// 0 is Sunday.
    fn weekday(&self) -> usize {
        let before = u32::from(self.year).saturating_sub(1);
        let days = before * 365 + before / 4 - before / 100 + before / 400 + self.day_of_year();
        (days % 7) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let at = DateTime { year: 2024, month: 7, day: 4, hour: 0, minute: 5, second: 9 };
        let cases = [
            ("%d %b %Y", "04 Jul 2024"),
            ("%B %-d, %Y (%A)", "July 4, 2024 (Thursday)"),
            ("%Y-%m-%dT%H:%M:%S", "2024-07-04T00:05:09"),
            ("%I:%M %p %j %y %e|%a %w %u", "12:05 AM 186 24  4|Thu 4 4"),
            ("100%% %Q %", "100% %Q %"),
            ("%-H", "0"),
        ];
        for (format, expect) in cases {
            assert_eq!(at.strftime(format), expect, "{format}");
        }
    }

    #[test]
    fn counts_from_the_epoch() {
        let cases = [
            (0, "1970-01-01 00:00:00 Thu 001"),
            (951_782_400, "2000-02-29 00:00:00 Tue 060"),
            (1_709_251_199, "2024-02-29 23:59:59 Thu 060"),
            (4_102_444_800, "2100-01-01 00:00:00 Fri 001"),
        ];
        for (seconds, expect) in cases {
            let at = DateTime::from_unix_seconds(seconds);
            assert_eq!(at.strftime("%F %T %a %j"), expect);
        }
    }
}
