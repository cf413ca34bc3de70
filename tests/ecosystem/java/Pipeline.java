import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;

/** Kafka Streams with exactly_once_v2: values in upper case, and a count of them in a store with a changelog. */
public class Pipeline {
    public static void main(String[] arguments) throws Exception {
        String source = arguments[1], target = arguments[2];
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[4]));
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[3]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[5]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        var upper = builder.<String, String>stream(source).mapValues(value -> value.toUpperCase());
        upper.peek((key, value) -> left.countDown()).to(target);
        upper.groupBy((key, value) -> value.substring(0, 1), Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                System.exit(1);
                return null;
            });
            streams.start();
            if (!left.await(300, TimeUnit.SECONDS)) {
                System.err.println(left.getCount() + " records are missing");
                System.exit(1);
            }
        }
        System.out.println("done");
    }
}
