//! Connects to the RabbitMQ that is named on the command line.

use std::time::Duration;

use clap::Args;
use standfast_brokers::rabbitmq::{PREFIX, RabbitBroker, RabbitSettings, SettingsFault};
use standfast_engine::ports::BrokerError;

use crate::failure::Failure;

/// How long a command waits for the broker.
const WAIT: Duration = Duration::from_secs(5);

/// Names a broker.
#[derive(Args, Clone, Debug)]
pub struct BrokerArgs {
    /// The RabbitMQ of the installation, such as amqp://user:password@host:5672/%2f
    #[arg(long, env = "STANDFAST_AMQP", value_name = "URL", hide_env_values = true)]
    amqp: String,
    /// Prefix of all names on RabbitMQ
    #[arg(long, env = "STANDFAST_AMQP_PREFIX", hide_env_values = true, value_name = "NAME")]
    #[arg(default_value = PREFIX)]
    amqp_prefix: String,
}

/// Names a broker, or none.
#[derive(Args, Clone, Debug)]
pub struct AnyBrokerArgs {
    /// The RabbitMQ of the installation, such as amqp://user:password@host:5672/%2f
    #[arg(long, env = "STANDFAST_AMQP", value_name = "URL", hide_env_values = true)]
    amqp: Option<String>,
    /// Prefix of all names on RabbitMQ
    #[arg(long, env = "STANDFAST_AMQP_PREFIX", hide_env_values = true, value_name = "NAME")]
    #[arg(default_value = PREFIX)]
    amqp_prefix: String,
}

impl AnyBrokerArgs {
    /// Gives the broker, if one was named.
    pub fn named(&self) -> Option<BrokerArgs> {
        let amqp = self.amqp.clone()?;
        Some(BrokerArgs { amqp, amqp_prefix: self.amqp_prefix.clone() })
    }
}

/// Reads the settings.
pub fn settings(args: &BrokerArgs) -> Result<RabbitSettings, SettingsFault> {
    RabbitSettings::parse(&args.amqp)?.with_prefix(&args.amqp_prefix)
}

/// Connects, declaring what all share, or says within seconds why not.
pub async fn connect(args: &BrokerArgs) -> Result<RabbitBroker, Failure> {
    let settings = settings(args).map_err(|fault| Failure::usage(format!("failed to {fault}")))?;
    let place = settings.place();
    RabbitBroker::connect(settings, Some(WAIT))
        .await
        .map_err(|error| failure(error).and(format!("the broker is {place}")))
}

/// Says why the broker did not do something.
pub fn failure(error: BrokerError) -> Failure {
    Failure::new(format!("failed to {error}"))
}

#[cfg(test)]
mod tests {
    use standfast_brokers::rabbitmq::{REASON_HEADER, REJECTED_AT_HEADER, ROUTING_KEY_HEADER};
    use standfast_domain::ids::Queue;
    use standfast_protocol::amqp;

    use super::*;

    /// The brokers know nothing of the protocol, so only here can the two be held together.
    #[test]
    fn the_brokers_names_are_the_protocols() {
        let settings = RabbitSettings::parse("amqp://localhost/%2f").unwrap();
        let names = settings.names();
        let queue = Queue::new("q").unwrap();
        assert_eq!(names.exchange(), amqp::EXCHANGE);
        assert_eq!(names.intake(), amqp::INTAKE_QUEUE);
        assert_eq!(names.rejected(), amqp::REJECTED_QUEUE);
        assert_eq!(names.steps(&queue), amqp::steps_queue("q"));
        assert_eq!(REASON_HEADER, amqp::PROBLEM_HEADER);
        assert_eq!(REJECTED_AT_HEADER, amqp::REJECTED_AT_HEADER);
        assert_eq!(ROUTING_KEY_HEADER, amqp::ROUTING_KEY_HEADER);
    }
}
